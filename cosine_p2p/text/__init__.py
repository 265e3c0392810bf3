"""Files of a model and chats come in; token ids go out, and text that no later token can change."""
