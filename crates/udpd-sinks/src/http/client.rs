//! What a consumer has of a server: the batch that is being filled, and those on the way.
