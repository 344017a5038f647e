"""What a step costs the CPU: launches, framework, and how fast this host is."""
