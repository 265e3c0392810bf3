"""OpenAI's responses API: `/v1/responses`. Nothing is stored: a request contains its whole conversation."""
