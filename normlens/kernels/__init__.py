"""What each analysis computes, named from its declaration and imported when run."""
