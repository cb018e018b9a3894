"""What speaks with engines that are kept up."""
