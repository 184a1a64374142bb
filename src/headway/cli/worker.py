"""`headway worker`, alone."""

from headway.cli.serve import worker
from headway.cli.session import new_command

app = new_command(worker)
