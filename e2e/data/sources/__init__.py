"""Where samples come from: image folders, CIFAR-10 and generated images."""
