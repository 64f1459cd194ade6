"""Frameworks whose memory is a session of the log, one module each; docs/adapters.md says how to write another.

An adapter imports its framework and public names of this library, and nothing of another adapter.
"""
