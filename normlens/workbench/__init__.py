"""What the explorer asks of the library: choices, sources, stored results, runs. No Streamlit.

Nothing here imports torch when it is imported. Finding stored results never does; opening a
model and running a prompt do, inside the functions that need it.
"""
