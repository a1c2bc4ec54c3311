"""Pack a document."""

print("packed")
