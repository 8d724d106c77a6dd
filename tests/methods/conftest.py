"""Present so that pytest puts this folder on the import path: tests in subfolders import `known_warps`."""
