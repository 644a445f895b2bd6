"""What others are told of the log: the AsyncAPI document, and topics for the Strimzi operator."""
