"""What a resource's content holds, however it travelled."""

import base64

import mcp_types as types


def bytes_of(content: types.TextResourceContents | types.BlobResourceContents) -> bytes:
    if isinstance(content, types.TextResourceContents):
        return content.text.encode()
    return base64.b64decode(content.blob, validate=True)
