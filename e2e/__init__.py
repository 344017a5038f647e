"""What half precision buys in real training: networks trained under precision recipes."""
