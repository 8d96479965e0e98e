"""Methods compared on one network and one data set: equal epochs, one teacher, one way of counting."""
