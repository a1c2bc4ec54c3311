"""What a conversation holds, as values: zones, stored messages, groups, token counts."""
