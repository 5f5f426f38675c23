"""Lesson 3."""
