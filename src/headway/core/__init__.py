"""The vocabulary and the pure decisions that everything else builds on. It imports nothing but itself."""
