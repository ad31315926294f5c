"""Programs: what a manager is asked to do, written so that any part of it is a program as well.

A program is a line of text, `add 0; append 0 5; fork 0 1; free 0`. Its numbers name requests, allocations and
steps by small integers that the program chooses itself, or count something; ids that an implementation gives
never stand in one. So a program means the same to every implementation, and what is left after some steps
have been dropped still means something: a step that makes no sense any more is passed over.

An interpreter performs the steps on a session, keeps a shadow of the memory beside it, and says which
requirement is breached where. One module each: `allocator`, `tables`, `prefix`, `keys`, `index`.
"""
