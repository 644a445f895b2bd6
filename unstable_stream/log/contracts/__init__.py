"""Documents about the log for other systems: AsyncAPI, and topics for the Strimzi operator."""
