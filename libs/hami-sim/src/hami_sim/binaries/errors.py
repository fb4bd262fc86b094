"""What goes wrong while binaries are found or built."""


class BinariesUnavailableError(Exception):
    """The programs cannot be had here; the message says where they were looked for and what to do."""
