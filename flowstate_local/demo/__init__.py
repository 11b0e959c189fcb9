"""The hotel case of the paper, live: six requests in one space, the last of which needs the first."""
