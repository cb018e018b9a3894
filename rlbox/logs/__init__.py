"""Cut, mask, date, follow and search growing logs; rates and steps in them."""
