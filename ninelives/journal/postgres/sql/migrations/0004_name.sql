-- The project has a new name, and so has its clock function.
ALTER FUNCTION holdfast_now() RENAME TO ninelives_now;
