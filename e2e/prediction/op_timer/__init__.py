"""How long each recorded operation takes on the device."""
