"""What a step costs by its tokens in flight, c(T): measured with drafts that are never right, stored, and looked up."""
