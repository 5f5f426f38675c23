"""Lesson 2."""
