"""The HTML report: what a run folder holds, the pictures, and the one page they become."""
