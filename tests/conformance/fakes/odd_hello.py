"""Says hello with the fields given on the command line."""

import json
import sys

import program

program.serve(program.copy, json.loads(sys.argv[1]))
