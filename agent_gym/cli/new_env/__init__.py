"""What `agent-gym new` writes, as templates of `string.Template`."""
