"""The connections of the HTTP server: uvicorn's, with limits to what a client may take or keep waiting.

Nothing here knows what is asked or answered; that begins with the application.
"""
