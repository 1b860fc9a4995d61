"""What a run was asked to do: the settings, the texts they are written as, and which of them go together."""
