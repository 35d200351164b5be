"""What runs on the host: standard library and the driver's own library; torch only for the collective."""
