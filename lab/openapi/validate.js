// Validates a document with the two validators that have no command of their own.
import {readFile} from 'node:fs/promises';
import {argv} from 'node:process';
import SwaggerParser from '@apidevtools/swagger-parser';
import oasValidator from 'oas-validator';

const file = argv[2];
await SwaggerParser.validate(file);
await oasValidator.validate(JSON.parse(await readFile(file, 'utf8')), {});
