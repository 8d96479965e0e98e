"""What the paper measures and argues, measured again."""
