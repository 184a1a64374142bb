"""The vocabulary and the pure decisions that everything else is built on. It imports nothing but itself."""
