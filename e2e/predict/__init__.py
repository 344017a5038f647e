"""What a precision will buy, from the ops of a step measured one by one; and where it went."""
