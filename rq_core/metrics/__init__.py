"""What people and programs look at to see how the queues do: one shared look, and metrics made of it."""
