"""The roofline of a decoding step: what the machine allows, whatever the software."""
