"""The relay of an inbox at each point where it may be killed, stopped, or lose its Redis; and under many kills."""
