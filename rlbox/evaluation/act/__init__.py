"""What asks servers, reads problems and writes results."""
