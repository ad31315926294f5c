"""Inputs that make a fault huge, built before any random data is tried."""
