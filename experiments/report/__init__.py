"""Tables, figures and the page of a results folder."""
