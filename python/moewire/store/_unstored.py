"""Why a server has not taken a block, in words for a person."""

from __future__ import annotations

from ._client import Client


def why_not_stored(client: Client) -> str:
    """Says why a put was refused.

    Args:
        client: one of which nothing but that put has failed.

    Returns:
        Why a server cannot be reached, else how servers have answered.
    """
    said = client.stats()
    answers = [name for name in said["replies"] if name not in ("ok", "existing")]
    refused = f"it refused the block: {', '.join(answers) or 'no answer'}"
    why = said.get("why_not") or [refused]
    return f"a block was not stored: {why[0]}"
