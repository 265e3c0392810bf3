"""Between text and tokens: tokenizers, chat templates, prompts, detokenizing, and the facts of a target.

In come files of a model and chats; out go token ids, and text that no later token can change.
"""
