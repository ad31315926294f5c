"""Has no fault."""

import program

program.serve(program.copy)
