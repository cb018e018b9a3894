"""Pin apt packages, Python packages, git trees and files."""
