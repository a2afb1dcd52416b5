"""Runs Squall and other programs in turn on one machine, and writes down what they did."""
