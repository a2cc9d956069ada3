"""What tests share: real servers, waiting, and the parts that stand in for the outside."""
