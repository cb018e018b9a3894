"""Where bytes come from: profiles, mirrors, egress."""
