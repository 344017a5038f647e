"""What the device and the host are and do."""
