"""A batch of decoded images, cut, resized, turned upright, flipped and normalised in one launch."""
